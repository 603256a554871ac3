"""How a server is started here: launch_server's own arguments, what this machine adds, and what speaks against it.

    arguments.py         what the user gave, read as SGLang's parser reads it, config file included
    machine.py           the platform, its devices and their memory
    recommendations.py   what is added, what is left to SGLang, each with its reason
    checks.py            what would fail, or fail silently, once the server runs
    command.py           the command as it would be typed

Nothing here imports SGLang: advice and refusals come in seconds, and also where SGLang is broken.
"""
