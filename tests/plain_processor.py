"""Importing this module hides the processor's instructions for bfloat16, so that tests give the same results on all processors.

The tests compare runs to 1e-5, and ``--precision auto`` means bfloat16 on a processor with such instructions. Processes that
the tests start without ``forked.py`` get ``--precision fp32`` instead.
"""

from cse.models import device

bf16_instructions = device.bf16_instructions  # the original, for the tests of this function
device.bf16_instructions = lambda: ()
