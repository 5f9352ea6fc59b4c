"""A Ray cluster for tests, and functions that find its processes and wait for conditions."""

import os
import time
from pathlib import Path


def two_nodes():
    """Fixture: a Ray cluster of two nodes with one core each; both nodes are processes on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def processes_reading(path, name):
    """Returns the ids of the processes that run the Ray task or actor ``name`` and have the file ``path`` open."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if name in (folder / "cmdline").read_text():
                links = [os.readlink(link) for link in (folder / "fd").iterdir()]
                pids |= {int(folder.name)} if str(path.resolve()) in links else set()
        except OSError:
            pass
    return pids


def wait_for(condition, seconds=120):
    """Calls ``condition`` until it returns a true value, and returns this value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.1)
    return found
