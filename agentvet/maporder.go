package agentvet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// MapOrder finds steps and children that are begun in the order of a map.
var MapOrder = rule("agentmaporder", "report steps, children and waits in the order of a map\n\n"+
	"The order of a map is another one in every execution. A replay then asks for something new while\n"+
	"recorded entries have not been asked for, and the run is held.", checkMapOrder)

// reports take an agent's context and leave nothing in its journal.
var reports = []string{"Heartbeat", "Progress", "Publish", "Peek"}

func checkMapOrder(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		if c.in(stack).kind() != agentCode {
			return
		}
		switch n := n.(type) {
		case *ast.RangeStmt:
			if !c.isUnordered(n.X) {
				return
			}
			if call := c.recording(n.Body); call != nil {
				c.report(n.X, "range over a map around %s: the order is another one in every execution; "+
					"sort the keys first", c.calleeName(call))
			}
		case *ast.CallExpr:
			f := c.agentCallee(n)
			if f == nil || f.Name() != "Parallel" && f.Name() != "Map" {
				return
			}
			for _, arg := range n.Args {
				if c.isCollected(arg) {
					c.report(arg, "agent.%s takes its items in the order of a map, which is another one in every "+
						"execution; use slices.Sorted", f.Name())
				}
			}
		}
	})
}

// isUnordered tells whether an expression is a map, or iterates over one.
func (s *scopes) isUnordered(e ast.Expr) bool {
	if _, ok := s.typeOf(e).Underlying().(*types.Map); ok {
		return true
	}
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	return ok && s.isFunc(call, "maps", "Keys", "Values", "All")
}

// isCollected tells whether an expression is a slice in the order of a map.
func (s *scopes) isCollected(e ast.Expr) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	return ok && s.isFunc(call, "slices", "Collect") && len(call.Args) == 1 && s.isUnordered(call.Args[0])
}

func (s *scopes) isFunc(call *ast.CallExpr, path string, names ...string) bool {
	f, ok := typeutil.Callee(s.info, call).(*types.Func)
	return ok && f.Pkg() != nil && f.Pkg().Path() == path && slices.Contains(names, f.Name())
}

// recording returns the first call in a block that leaves something in the journal, or nil. The
// functions of steps are left out, and those of local variables are followed.
func (s *scopes) recording(block ast.Node) *ast.CallExpr {
	return s.recordingIn(block, make(map[*ast.FuncLit]bool))
}

func (s *scopes) recordingIn(block ast.Node, seen map[*ast.FuncLit]bool) (found *ast.CallExpr) {
	ast.Inspect(block, func(n ast.Node) bool {
		if found != nil {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncLit:
			return s.functions[n].kind() == agentCode
		case *ast.CallExpr:
			f := s.agentCallee(n)
			if s.passesAgentContext(n) && (f == nil || !slices.Contains(reports, f.Name())) {
				found = n
				return false
			}
			id, ok := ast.Unparen(n.Fun).(*ast.Ident)
			if !ok {
				break
			}
			if b := s.bound[s.info.Uses[id]]; b != nil && !seen[b.lit] && s.functions[b.lit].kind() == agentCode {
				seen[b.lit] = true
				if s.recordingIn(b.lit.Body, seen) != nil {
					found = n
				}
			}
		}
		return found == nil
	})
	return found
}

// calleeName returns the name of the function that a call calls, for a message.
func (s *scopes) calleeName(call *ast.CallExpr) string {
	f := typeutil.Callee(s.info, call)
	switch {
	case f == nil:
		return "a call with the agent's context"
	case f.Pkg() != nil && f.Pkg().Path() == agentPath:
		return "agent." + f.Name()
	}
	return f.Name()
}
