// Package input reads what a request asks: its items as messages of a thread, and the fields that the door can't
// honour.
package input
