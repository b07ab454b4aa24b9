// Package shape has the small things that all packages of the door share: objects, pages, the selection of
// fields, ids, and refusals with 422.
package shape
