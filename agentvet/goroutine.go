package agentvet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// Go finds steps of several goroutines that have one name.
var Go = rule("agentgo", "report steps of one name in several goroutines\n\n"+
	"The key of a step is its name and the number of its use. Goroutines have no order, so a replay may\n"+
	"give the result of one to the other. Steps of a goroutine need names of their own.", checkGo)

// A launch is a place where an agent starts a goroutine.
type launch struct {
	body *ast.FuncLit
	// loop is the loop in the agent that starts it, or nil.
	loop ast.Node
}

func checkGo(c *checker) {
	launches := make(map[*function][]launch)
	c.walk(func(n ast.Node, stack []ast.Node) {
		f := c.in(stack)
		if f.kind() != agentCode {
			return
		}
		if body := c.started(n); body != nil {
			launches[f.agent()] = append(launches[f.agent()], launch{body, loopAround(stack)})
		}
	})
	for agent, list := range launches {
		c.checkLaunches(agent, list)
	}
}

// checkLaunches reports the steps of an agent's goroutines that share a name with another step.
func (c *checker) checkLaunches(agent *function, list []launch) {
	starts := make(map[*ast.FuncLit]int)
	for _, l := range list {
		starts[l.body]++
	}
	// names has the goroutines in which a name is used; the agent's own is one of them.
	names := make(map[string]map[ast.Node]bool)
	for _, call := range c.steps(agent.node) {
		name := c.constant(call.Args[1])
		if names[name] == nil {
			names[name] = make(map[ast.Node]bool)
		}
		names[name][innermost(call, agent.node, list)] = true
	}
	reported := make(map[*ast.CallExpr]bool)
	for _, l := range list {
		for _, call := range c.steps(l.body) {
			name := call.Args[1]
			switch text := c.constant(name); {
			case reported[call]:
				continue
			case l.loop != nil && c.isFixed(name, l.loop), starts[l.body] > 1 && text != "":
				c.report(name, "a goroutine that is started several times has a step of one name: goroutines have no "+
					"order, and a replay may swap the results; give each step a name of its own")
			case text != "" && len(names[text]) > 1:
				c.report(name, "step %s is also in another goroutine: goroutines have no order, and a replay may swap "+
					"the results; give each step a name of its own", text)
			default:
				continue
			}
			reported[call] = true
		}
	}
}

// innermost returns the function that the goroutine of a call begins with.
func innermost(call *ast.CallExpr, agent ast.Node, list []launch) ast.Node {
	out := agent
	for _, l := range list {
		if within(l.body, call.Pos()) && within(out, l.body.Pos()) {
			out = l.body
		}
	}
	return out
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

// steps returns the calls of agent.Step in a function, without those of steps.
func (c *checker) steps(root ast.Node) (out []*ast.CallExpr) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return n == root || c.functions[n].kind() == agentCode
		case *ast.CallExpr:
			if f := c.agentCallee(n); f != nil && f.Name() == "Step" && len(n.Args) > 1 {
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

// isFixed tells whether an expression is the same in each round of a loop, as far as it can be
// seen.
func (c *checker) isFixed(e ast.Expr, loop ast.Node) bool {
	fixed := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			fixed = fixed && c.info.Types[n.Fun].IsType()
		case *ast.Ident:
			v, ok := c.info.Uses[n].(*types.Var)
			fixed = fixed && (!ok || !within(loop, v.Pos()) && !v.IsField())
		}
		return fixed
	})
	return fixed
}

func within(n ast.Node, pos token.Pos) bool { return n.Pos() <= pos && pos < n.End() }

// loopAround returns the innermost loop around a goroutine's start, in the same function.
func loopAround(stack []ast.Node) ast.Node {
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return n
		case *ast.FuncLit, *ast.FuncDecl:
			return nil
		}
	}
	return nil
}
