"""A node of the chaos ring on a disk with a quota: `python -m tests.store.quota_node <store> <ledger> [options]`."""

from tests.chaos import node
from tests.store.disks import obey_quota

if __name__ == "__main__":
    with obey_quota():
        node.main()
