// Package translate turns the log of a run into the events of a response. It is pure: it makes no calls, and
// the same log gives the same bytes.
//
// # How it works
//
// All answers come from a [Translator]: a stream writes the events, an answer that waits has the response of
// the last one, and notify.go makes the bodies of webhooks. A run that asks a person for an approval ends its
// response; the lines that follow are the next part of the run, which is a response of its own. A translator of a
// later part reads the lines of the earlier ones, and has no events for them.
package translate
