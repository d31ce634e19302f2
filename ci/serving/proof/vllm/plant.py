"""The planted slowdown: a logits processor that sleeps in every step of the engine."""

import time

from vllm.v1.sample.logits_processor import LogitsProcessor

SLEEP_S = 0.1


class Sleep(LogitsProcessor):
    """Changes nothing and takes its time."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.said = False

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        if not self.said:
            print("Sleeps in every step.", flush=True)
            self.said = True
        time.sleep(SLEEP_S)
        return logits
