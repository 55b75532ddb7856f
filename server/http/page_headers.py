"""What every reply to a browser says about itself: what its page may load, and who may put it where.

A page loads from its own server alone, runs no inline script, and stands in nobody's frame.
"""

from __future__ import annotations

__all__ = ["page_headers"]


def page_headers(*, images: str = "'self'") -> dict[str, str]:
    """Headers of a page; `images`: where its pictures may come from, as a content security policy says it."""
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": images,
        "connect-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        # Not `no-referrer`: a browser then says `Origin: null` of a page's own forms.
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
