"""Importing this module hides the processor's instructions for bfloat16, so that all processors give the same results.

The tests compare runs to 1e-5; with ``--precision auto`` a processor with such instructions trains in bfloat16.
Processes that the tests start by other means than ``forked.py`` are given ``--precision fp32``.
"""

from cse.models import device

bf16_instructions = device.bf16_instructions  # the function that is tested
device.bf16_instructions = lambda: ()
