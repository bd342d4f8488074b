"""Secrets: references to them are stored, their values live in memory only and are hidden in every output."""

from pollux.secrets.redaction import HIDDEN, MASK, at_place, hide, looks_secret
from pollux.secrets.references import check_references, has_reference, may_hold_references, references_of, texts_of
from pollux.secrets.resolve import Secrets, check_payload, payload_and_json

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
