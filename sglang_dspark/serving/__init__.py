"""What meets SGLang: the plugin's registration, the checked contract, the worker, and the CPU engine's parts."""
