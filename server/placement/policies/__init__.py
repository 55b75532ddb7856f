"""Placement policies: who loads, who leaves. Pure, each behind the contract of `placement.policy`."""
