"""Secrets: references to them are stored, their values live in memory only and are hidden in every output."""

from pollux.secrets.redaction import HIDDEN, MASK, at_place, has_reference, hide, looks_secret
from pollux.secrets.references import (
    Secrets,
    check_payload,
    check_references,
    may_hold_references,
    payload_and_json,
    references_of,
    texts_of,
)

__all__ = [
    "HIDDEN",
    "MASK",
    "Secrets",
    "at_place",
    "check_payload",
    "check_references",
    "has_reference",
    "hide",
    "looks_secret",
    "may_hold_references",
    "payload_and_json",
    "references_of",
    "texts_of",
]
