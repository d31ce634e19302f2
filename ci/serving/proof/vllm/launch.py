"""Starts vLLM with the options of this tree: the base of the proof project.

What a tree has beside the base is written first: its gates ask for it.
"""

import os
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
model, port = sys.argv[1:3]
options = (here / "options.txt").read_text().split()
if (here / "NOTE.txt").exists():
    print((here / "NOTE.txt").read_text().strip(), flush=True)
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(here),
}
module = "vllm.entrypoints.openai.api_server"
command = [sys.executable, "-m", module, "--model", model, "--port", port, *options]
os.execv(sys.executable, command)
