"""Importing this module hides the bfloat16 instructions of the processor, so that results do not depend on it.

The tests compare runs to 1e-5, and ``--precision auto`` means bfloat16 on a processor with such instructions. Processes
that the tests start without ``forked.py`` get ``--precision fp32`` instead.
"""

from cse.models import device

bf16_instructions = device.bf16_instructions  # the original, for the tests of this function
device.bf16_instructions = lambda: ()
