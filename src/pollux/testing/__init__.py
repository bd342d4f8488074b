"""Shipped for users: clocks that stand still, faults on order, and the suite that every store must pass."""
