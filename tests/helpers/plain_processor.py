"""Importing this module hides the bfloat16 instructions of the processor, so that results do not depend on the machine.

The tests compare runs with a tolerance of 1e-5. This is too strict for bfloat16, which ``--precision auto`` may choose
on a processor with bfloat16 instructions. Processes that are started without ``forked.py`` do not import this module;
tests that compare the results of these processes set the precision to fp32.
"""

from cse.encoder import device

bf16_instructions = device.bf16_instructions  # the original function, for its own tests
device.bf16_instructions = lambda: ()
