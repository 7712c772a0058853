"""Backends of model servers, one file each: how a request is written, and where an answer says what."""
