"""The calls of a client, in a file for each part of the API."""
