"""Import what the server imports, in the environment that cpu_engine.sh made; any failure ends in a traceback."""

import importlib
import importlib.metadata

for module in (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.minimax_m3",
    "sglang.srt.models.minimax_m3_vl",
    "sglang.srt.models.dspark_minimax",
):
    importlib.import_module(module)
    print("imported", module)

plugins = importlib.metadata.entry_points(group="sglang.srt.plugins")
if "dspark" not in plugins.names:
    raise SystemExit("SGLang will not find the plugin: no entry point 'dspark' in group sglang.srt.plugins")
print("found the plugin:", plugins["dspark"].value)
