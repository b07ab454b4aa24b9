// Package frames translates logs, messages and metadata to and from the shapes of the LangGraph Platform. It
// is pure: it makes no calls, and the same log gives the same bytes.
//
// # How it works
//
// A [Translator] keeps what the lines of a run's log have said so far, and makes the frames of each line. What a
// line only names, such as a message by its number, it asks for by functions that its user sets; these things
// never change once the line is written. [Notify] makes the body of a webhook with the same translator.
//
// # Where to start reading
//
//   - frames.go: the translation of a log.
//   - messages.go: messages of LangChain and of a thread.
//   - metadata.go: the keys in the metadata of a run, and statuses. modes.go: the modes of a stream.
//   - notify.go: webhooks.
package frames
