// Package follow answers with the stream of a thread, which tells of one run after another.
package follow
