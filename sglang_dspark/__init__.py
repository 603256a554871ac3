"""SGLang plugin that serves MiniMax-M3 with a DSpark speculative draft.

Importing this package imports nothing else: SGLang finds the plugin through the entry point ``sglang.srt.plugins``
(see ``serving/plugin.py``), and a CPU engine's ``.pth`` file reaches ``serving/cpu/standins.py`` at every interpreter
start, so this module and the packages on that way stay empty.
"""

__version__ = "0.1.0"
