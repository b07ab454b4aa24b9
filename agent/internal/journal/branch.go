package journal

import (
	"regexp"
	"strings"
)

// The keys of a branch begin with its own key and a separator: "left#1//search#1" is the first step
// "search" of the first branch "left". Branches can be within branches: "left#1//deep#2//search#1". The
// names of the agent have no "#", digits and separator in them, so a key tells its branch.

// BranchSeparator ends the key of a branch in the keys of its things.
const BranchSeparator = "//"

var branchEnd = regexp.MustCompile(`#[0-9]+//`)

// HasBranch tells whether a name could be taken for the key of something in a branch.
func HasBranch(name string) bool {
	return strings.Contains(name, BranchSeparator) && branchEnd.MatchString(name)
}

// BranchOf returns the part of a key that is its branch, with the separator. It is empty for what the
// agent's own goroutine records.
func BranchOf(key string) string {
	if !strings.Contains(key, BranchSeparator) {
		return ""
	}
	ends := branchEnd.FindAllStringIndex(key, -1)
	if len(ends) == 0 {
		return ""
	}
	return key[:ends[len(ends)-1][1]]
}

// parentOf returns the branch that a branch is in.
func parentOf(branch string) string { return BranchOf(strings.TrimSuffix(branch, BranchSeparator)) }

// InBranch returns an id with a prefix for its type, which comes after the branch of a key: that of a
// race over "left#1//join:any#1" is "left#1//race:join:any#1".
func InBranch(prefix, key string) string {
	branch := BranchOf(key)
	return branch + prefix + key[len(branch):]
}
