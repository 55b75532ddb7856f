"""Bytes of strangers become a request within limits, or a refusal; replies go back. Knows no service."""
