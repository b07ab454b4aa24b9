// Package body reads the bodies of calls to a door: kindly, and within bounds of size, time and memory.
//
// # How it works
//
// [Budget.Read] reads a small body at once. A large one is read after the API has accepted the key, and takes
// one of a few places. [Decode] ignores fields that the value does not have, and refuses fields of another
// type.
package body
