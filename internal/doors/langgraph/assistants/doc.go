// Package assistants shows kinds as assistants, and finds a kind by its name or by the id of its assistant.
package assistants
