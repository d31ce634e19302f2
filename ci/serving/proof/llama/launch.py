"""Starts llama.cpp's server with the options of this tree: the base of the project.

`--pause-ms N` is the planted slowdown: the server is stopped for N of every N + 20 ms.
What a tree has beside the base is written first: its gates ask for it.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import xllamacpp

RUN_MS = 20
SLOTS = 4
CONTEXT = 8192

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("port", type=int)
parser.add_argument("--pause-ms", type=int, default=0)
here = Path(__file__).resolve().parent
options = parser.parse_args(sys.argv[1:] + (here / "options.txt").read_text().split())

if (here / "NOTE.txt").exists():
    print((here / "NOTE.txt").read_text().strip(), flush=True)
if options.pause_ms:
    print(f"Stopped for {options.pause_ms} of every {options.pause_ms + RUN_MS} ms.")
    sys.stdout.flush()
child = os.fork() if options.pause_ms else 0
if child:
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(RUN_MS / 1000)
        os.kill(child, signal.SIGSTOP)
        time.sleep(options.pause_ms / 1000)
        os.kill(child, signal.SIGCONT)
    sys.exit(1)

settings = xllamacpp.CommonParams()
settings.model.path = options.model
settings.model_alias = {"tiny"}
settings.hostnames = ["127.0.0.1"]
settings.port = options.port
settings.n_parallel = SLOTS
settings.n_ctx = SLOTS * CONTEXT
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
settings.endpoint_metrics = True
# Prompts of earlier requests must not make later ones cheaper.
settings.cache_prompt = False
settings.cache_ram_mib = 0
server = xllamacpp.Server(settings)
while True:
    time.sleep(60)
