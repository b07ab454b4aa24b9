// Package vectors writes testdata/journal: files that show the format of docs/journal.md in use. They
// are for libraries in other languages, whose tests read them without any Go.
//
//   - canonical_test.go: texts and their canonical JSON, with digests.
//   - keys_test.go: names and the keys that they get.
//   - python_test.go: the same, computed by a program in another language.
//   - stories_test.go and story_*_test.go: small agents, their grants and their commits.
//
// Stories are executed against a stand-in for worker and server (server_test.go), in virtual time, so
// that the same bytes come out on every machine. The package has only tests. With the flag -update they
// write the files (make vectors); without it they compare.
package vectors
