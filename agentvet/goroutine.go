package agentvet

import (
	"go/ast"
	"go/token"
)

// Go finds calls of an agent in goroutines that are no branches.
var Go = rule("agentgo", "report steps, waits and messages in goroutines that agent.Go did not begin\n\n"+
	"A replay needs the place of such a call among the others. Goroutines have no order. A branch, which\n"+
	"agent.Go begins, has a name and an order of its own.", checkGo)

// anywhere has the functions and methods that may be called in any goroutine, although they take an
// agent's context.
var anywhere = map[string]bool{"Removed": true, "Continue": true, "Cancel": true, "RunID": true, "ThreadID": true,
	"Unread": true, "Value": true}

func checkGo(c *checker) {
	reported := make(map[*ast.CallExpr]bool)
	c.walk(func(n ast.Node, stack []ast.Node) {
		if c.in(stack).kind() != agentCode {
			return
		}
		body := c.started(n)
		if body == nil {
			return
		}
		for _, call := range c.ordered(body) {
			if !reported[call] {
				reported[call] = true
				c.report(call, "%s in a goroutine that agent.Go did not begin: a replay needs its place among the "+
					"other calls; begin a branch with agent.Go", c.agentCallee(call).Name())
			}
		}
	})
}

// started returns the function that a node starts as a goroutine, or nil: that of a go statement,
// or of a method Go as groups of goroutines have.
func (c *checker) started(n ast.Node) *ast.FuncLit {
	switch n := n.(type) {
	case *ast.GoStmt:
		return c.literal(n.Call.Fun)
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if ok && sel.Sel.Name == "Go" && len(n.Args) == 1 && c.info.Selections[sel] != nil {
			return c.literal(n.Args[0])
		}
	}
	return nil
}

// literal returns the function literal that an expression is, or that a local variable holds.
func (c *checker) literal(e ast.Expr) *ast.FuncLit {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return e
	case *ast.Ident:
		if b := c.bound[c.info.Uses[e]]; b != nil {
			return b.lit
		}
	}
	return nil
}

// ordered returns the calls in a goroutine's function whose place among the others counts in a replay,
// without those of steps and branches.
func (c *checker) ordered(root *ast.FuncLit) (out []*ast.CallExpr) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return n == root || c.functions[n].kind() == agentCode && !c.takes(n.Type, isAgentContext)
		case *ast.CallExpr:
			if f := c.agentCallee(n); f != nil && !anywhere[f.Name()] && takesAgentContext(f) {
				out = append(out, n)
			}
		}
		return true
	})
	return out
}

// constant returns the text of a constant string, or none.
func (c *checker) constant(e ast.Expr) string {
	if v := c.info.Types[e].Value; v != nil {
		return v.ExactString()
	}
	return ""
}

func within(n ast.Node, pos token.Pos) bool { return n.Pos() <= pos && pos < n.End() }
