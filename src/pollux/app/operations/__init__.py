"""Operations of an app by subject: everything that people and programs may ask of a store and its nodes."""

from pollux.app.operations.context import OperationContext
from pollux.app.operations.contract import Operations, OperationsProtocol

__all__ = ["OperationContext", "Operations", "OperationsProtocol"]
