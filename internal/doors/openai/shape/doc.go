// Package shape has the shapes of the Responses API, the ids of responses, and what a run's metadata keeps of
// its request.
package shape
