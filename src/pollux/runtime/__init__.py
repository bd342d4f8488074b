"""What moves it?  The loops of a node, each with one job, and the crew they make up."""

from pollux.runtime.crew import Crew, Status
from pollux.runtime.lateness import LatenessSeen
from pollux.runtime.loop import Loop, LoopStatus, Rest
from pollux.runtime.options import CrewOptions

__all__ = ["Crew", "CrewOptions", "LatenessSeen", "Loop", "LoopStatus", "Rest", "Status"]
