"""Values of the domain: frozen, comparable, made of plain data, without behaviour of their own."""

# A table of names: packed, which the formatter and the import sorter would not do.
# fmt: off
# isort: off
from pollux.model.job import (
    API_SOURCE, ERROR_CHARS_MAX, TIMEOUT_MS, Cron, Interval, Isolate, Job, Memory, Misfire, OnEvent, Once, Overlap,
    Retry, Schedule, definition,
)
from pollux.model.node import (
    BEAT_LATE_MS, DECLARATION_CURE, HANDLER_CURE, LOOP_CURE, RENEW_MIN_MS, SETTLED_MS, START, DeclarationConflict,
    Declares, HandlerConflict, LatestDeclaration, Node, NodeLoad, NodeRole, StartCommand, Term, blocked_leader, by_term,
    check_term, declaration_conflicts, declares, handler_conflicts, leader_of, leadership, may_conflict, role_of,
    serve_words, starts_in, unserved, with_start,
)
from pollux.model.note import (
    DRAIN, NOTE_BYTES_MAX, SETTING, SOURCE, STEERING, STOP, TURN, AuditLine, Drained, Note, NotePut, chained,
    drain_key, drained_of, stop_key,
)
from pollux.model.plan import (
    BEHIND_MAX, FIRINGS_MAX, NOTES_MAX, UNREAD_MAX, UPDATES_MAX, Arrived, CancelOrder, Earlier, End, Ended, Entry,
    FeedItem, Firing, Holding, JobUpdate, JobsDeleted, JobsMoved, JobsPut, NodeSeen, NotesChanged, Plan, Release,
    Spoilt,
)
from pollux.model.results import (
    AHEAD_MAX, SCHEDULER_VERSION, VERSION_MAX, Advanced, Answer, Counts, QueueDepth, Version, check_version,
    queue_words,
)
from pollux.model.run import (
    AT_THE_GATE, FINISHED, LIVE, PREVIOUS_RUN, PROGRESS_CHARS_MAX, SCHEDULED, TRANSITIONS, TRIED_CHARS_MAX, TRIED_MAX,
    Back, Cancelled, Cause, Dead, Done, Fault, Hold, Outcome, RetryAt, Run, RunState, Tried, Verdict, as_it_is,
    error_parts, error_text, lease_lost, may_become, run_of, tried_again,
)
from pollux.model.leader_notes import (
    LEADER_NOTES, UnreadableNote, feed_value, jobs_value, unreadable_note, unreadable_note_key, unreadable_notes,
)
# isort: on

__all__ = [
    "AHEAD_MAX", "API_SOURCE", "AT_THE_GATE", "BEAT_LATE_MS", "BEHIND_MAX", "DECLARATION_CURE", "DRAIN",
    "ERROR_CHARS_MAX", "FINISHED", "FIRINGS_MAX", "HANDLER_CURE", "LEADER_NOTES", "LIVE", "LOOP_CURE", "NOTES_MAX",
    "NOTE_BYTES_MAX", "PREVIOUS_RUN", "PROGRESS_CHARS_MAX", "RENEW_MIN_MS", "SCHEDULED", "SCHEDULER_VERSION", "SETTING",
    "SETTLED_MS", "SOURCE", "START", "STEERING", "STOP", "TIMEOUT_MS", "TRANSITIONS", "TRIED_CHARS_MAX", "TRIED_MAX",
    "TURN", "UNREAD_MAX", "UPDATES_MAX", "VERSION_MAX", "Advanced", "Answer", "Arrived", "AuditLine", "Back",
    "CancelOrder", "Cancelled", "Cause", "Counts", "Cron", "Dead", "DeclarationConflict", "Declares", "Done", "Drained",
    "Earlier", "End", "Ended", "Entry", "Fault", "FeedItem", "Firing", "HandlerConflict", "Hold", "Holding", "Interval",
    "Isolate", "Job", "JobUpdate", "JobsDeleted", "JobsMoved", "JobsPut", "LatestDeclaration", "Memory", "Misfire",
    "Node", "NodeLoad", "NodeRole", "NodeSeen", "Note", "NotePut", "NotesChanged", "OnEvent", "Once", "Outcome",
    "Overlap", "Plan", "QueueDepth", "Release", "Retry", "RetryAt", "Run", "RunState", "Schedule", "Spoilt",
    "StartCommand", "Term", "Tried", "UnreadableNote", "Verdict", "Version", "as_it_is", "blocked_leader", "by_term",
    "chained", "check_term", "check_version", "declaration_conflicts", "declares", "definition", "drain_key",
    "drained_of", "error_parts", "error_text", "feed_value", "handler_conflicts", "jobs_value", "leader_of",
    "leadership", "lease_lost", "may_become", "may_conflict", "queue_words", "role_of", "run_of", "serve_words",
    "starts_in", "stop_key", "tried_again", "unreadable_note", "unreadable_note_key", "unreadable_notes", "unserved",
    "with_start",
]
# fmt: on
