package session

// maxTries bounds the tries of one execution that are told apart.
const maxTries = 99

// Try numbers the executions of a step, or of a task, for its streamed text. n counts the repetitions
// under one epoch, from 0. An epoch is granted once, so the number is greater whenever the text is
// told again.
func Try(epoch int64, n int) int64 { return epoch*(maxTries+1) + int64(min(n, maxTries-1)) + 1 }
