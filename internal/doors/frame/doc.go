// Package frame has what the translations of logs are made of: frames, their places, and the lines that
// webhooks are told of.
//
// # How it works
//
// A [Translation] sees the lines of one run's log from the first on, and returns the [Frame] values of each. A
// [Cursor] is the place of a frame: the number of its line, and its own number among the frames of that
// line. So a cut between two frames of one line neither repeats nor loses one. A [Notice] is a line with what the
// body of a webhook may depend on.
//
// # What it is not
//
// It makes no calls, and imports no package that does. Packages that only translate use it instead of the
// frame of the doors, so that they can't depend on a clock, a setting or an earlier call.
package frame
