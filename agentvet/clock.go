package agentvet

import (
	"go/ast"
	"go/types"
	"path"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// Clock finds values that differ in every execution: the time, random numbers, the environment.
var Clock = rule("agentclock", "report a clock, random numbers or the environment outside of steps\n\n"+
	"An agent is executed anew after every wait and every crash. What time.Now, package rand, os.Getenv or\n"+
	"uuid.New return is another value then, and a decision by it contradicts the journal.", checkClock)

// readings are the functions whose results differ between executions, and what to use instead.
var readings = map[string]struct {
	names   []string
	instead string
}{
	"time": {[]string{"Now", "Since", "Until"}, "agent.Now, which records the time, or a step"},
	"os": {[]string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Hostname", "Getpid"},
		"a step, or read it before the worker starts"},
}

// ids are the last elements of packages that make random ids.
var ids = []string{"uuid", "ulid", "xid", "ksuid", "nanoid"}

func checkClock(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || c.in(stack).kind() != agentCode {
			return
		}
		f, ok := typeutil.Callee(c.info, call).(*types.Func)
		if !ok || f.Pkg() == nil || f.Signature().Recv() != nil {
			return
		}
		if instead := unstable(f); instead != "" {
			c.report(call, "%s.%s outside of steps: every execution of the agent gets another value; use %s",
				f.Pkg().Name(), f.Name(), instead)
		}
	})
}

// unstable returns what to use instead of a function that returns something else in every
// execution.
func unstable(f *types.Func) string {
	if r, ok := readings[f.Pkg().Path()]; ok && slices.Contains(r.names, f.Name()) {
		return r.instead
	}
	switch f.Pkg().Path() {
	case "math/rand", "math/rand/v2", "crypto/rand":
		// A generator with a seed is the same in every execution, if the seed is.
		if !strings.HasPrefix(f.Name(), "New") && f.Name() != "Seed" {
			return "a step"
		}
		return ""
	}
	if slices.Contains(ids, lastElement(f.Pkg().Path())) && (strings.HasPrefix(f.Name(), "New") ||
		f.Name() == "Make" || f.Name() == "Generate") && !isDerived(f) {
		return "agent.UUID, which records it, or a step"
	}
	return ""
}

// isDerived tells whether an id is made from what is given, such as uuid.NewSHA1.
func isDerived(f *types.Func) bool {
	return slices.Contains([]string{"NewSHA1", "NewMD5", "NewHash", "NewV3", "NewV5", "NewWithTime"}, f.Name())
}

// lastElement returns the last element of a path that is no version.
func lastElement(p string) string {
	last := path.Base(p)
	if len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		return path.Base(path.Dir(p))
	}
	return last
}
