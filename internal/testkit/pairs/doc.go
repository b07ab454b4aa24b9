// Package pairs knows which features of the product meet on one run, and by which test each pair of
// them is tried.
//
// # What it is for
//
// A feature that is right alone can be wrong beside another one. docs/pairs.md has a cell for every two
// features. A cell names what tries both at once, or says why they can't meet.
//
// # How it works
//
//   - feature.go lists the features. A new one gets its row and its column by a line there. Every event
//     of the transition table, every rule of the watchdog, every type of wait, every field of a
//     submission and every route belongs to a feature, or to no particular one; surface.go says to
//     which, and a test fails for one that is not listed.
//   - detect.go decides which features are in force on a run: a pure function of its row and of what
//     else is stored about it. history.go follows one run and notes which features were in force
//     together, and which of them came first.
//   - read.go reads the input of the detector from a store.
//   - The simulator and the conformance suite both use the detector. What they reached is listed in
//     simulated.txt and conformance.txt, from which the page is printed. Each of them fails if it does
//     not reach what its list says.
//   - cells.go has what neither reaches: other tests by name, and pairs that can't meet.
//
// # What it is not
//
// It decides nothing for the product, and no package of the product imports it.
package pairs
