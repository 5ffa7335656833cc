"""Mechanisms that span processes."""
