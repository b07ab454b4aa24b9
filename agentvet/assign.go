package agentvet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// Assign finds changes that a step's function makes to variables of its agent.
var Assign = rule("agentassign", "report an assignment to an outer variable inside of a step\n\n"+
	"A step that is recorded is not executed again, so an execution after a wait or a crash finds the\n"+
	"variable without the change. Return the value from the step's function instead.", checkAssign)

// A change is a place in a step's function where a variable from outside of it is changed.
type change struct {
	at    ast.Node
	step  *function
	place place
	// text is the changed expression.
	text string
}

// A place is the thing that an expression names: a variable, and then fields (*types.Var) and constant keys
// (string) that lead to a part of it. It ends at an index that is no constant.
type place []any

func (p place) variable() *types.Var { return p[0].(*types.Var) }

func checkAssign(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		step := c.in(stack).step()
		if step == nil {
			return
		}
		for _, target := range c.targets(n) {
			to := c.place(target)
			if len(to) == 0 || step.contains(to.variable().Pos()) {
				continue
			}
			x := change{n, step, to, types.ExprString(target)}
			if c.isMissed(x, stack) {
				c.report(target, "%s is changed inside of a step: a step that is recorded is not executed again, and "+
					"then the change is missing; return the value from the step's function", x.text)
			}
		}
	})
}

// targets returns the expressions that a node changes.
func (c *checker) targets(n ast.Node) (out []ast.Expr) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return slices.DeleteFunc(slices.Clone(n.Lhs), func(e ast.Expr) bool {
				id, ok := e.(*ast.Ident)
				return ok && c.info.Defs[id] != nil
			})
		}
		return n.Lhs
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if e != nil {
					out = append(out, e)
				}
			}
		}
	case *ast.CallExpr:
		return c.readInto(n)
	}
	return out
}

// readInto returns the variables whose addresses are passed to a call that decodes something, and
// the map that delete is called for.
func (c *checker) readInto(call *ast.CallExpr) (out []ast.Expr) {
	switch f := typeutil.Callee(c.info, call).(type) {
	case *types.Builtin:
		if (f.Name() == "delete" || f.Name() == "clear") && len(call.Args) > 0 {
			out = append(out, call.Args[0])
		}
	case *types.Func:
		if !slices.ContainsFunc([]string{"Unmarshal", "Decode", "Scan", "Sscan", "Fscan"}, func(prefix string) bool {
			return strings.HasPrefix(f.Name(), prefix)
		}) {
			return nil
		}
		for _, arg := range call.Args {
			if u, ok := ast.Unparen(arg).(*ast.UnaryExpr); ok && u.Op == token.AND {
				out = append(out, u.X)
			}
		}
	}
	return out
}

// place returns the place that an expression names, or nothing.
func (c *checker) place(e ast.Expr) place {
	switch e := e.(type) {
	case *ast.Ident:
		if v := c.variable(e); v != nil && e.Name != "_" {
			return place{v}
		}
	case *ast.ParenExpr:
		return c.place(e.X)
	case *ast.StarExpr:
		return c.place(e.X)
	case *ast.IndexExpr:
		before := c.place(e.X)
		if key := c.constant(e.Index); before != nil && key != "" {
			return append(before, key)
		}
		return before
	case *ast.SelectorExpr:
		field, ok := c.info.Uses[e.Sel].(*types.Var)
		if !ok {
			return nil
		}
		if !field.IsField() { // a variable of another package
			return place{field}
		}
		if before := c.place(e.X); before != nil {
			return append(before, field)
		}
	}
	return nil
}

// isMissed tells whether the agent would miss a change that a replay does not make.
func (c *checker) isMissed(x change, stack []ast.Node) bool {
	agent := x.step.agent()
	if agent == nil || c.isAssignedByStep(x, stack) {
		return false
	}
	v := x.place.variable()
	if len(x.place) > 1 && holdsAgentContext(v.Type()) {
		return true // what has the context is made anew in each execution, and other functions read it
	}
	local := agent.contains(v.Pos())
	// Something shared, which is passed around, is not read for that. Its part has to be.
	shared := (!local || c.isParameter(v, agent)) && len(x.place) > 1 && isStruct(v.Type())
	missed := false
	walk(agent.node, func(n ast.Node, around []ast.Node) {
		e, ok := n.(ast.Expr)
		if missed || !ok || within(x.step.node, n.Pos()) || isTarget(e, around) {
			return
		}
		if p, ok := parent(around).(ast.Expr); ok && (rootOf(p) != nil && rootOf(p) == rootOf(e) || isSel(p, e)) {
			return // it is part of an expression that is looked at
		}
		f := c.enclosing(around, agent)
		if !local && f.kind() != agentCode {
			return
		}
		read := c.place(e)
		if len(read) == 0 || read.variable() != v {
			return
		}
		if id, ok := e.(*ast.Ident); ok && c.info.Defs[id] != nil {
			return
		}
		missed = overlap(x.place, read) && !(shared && len(read) == 1)
	})
	return missed
}

// enclosing returns the function around a node of an agent.
func (c *checker) enclosing(around []ast.Node, agent *function) *function {
	if f := c.in(around); f != nil {
		return f
	}
	return agent
}

// isAssignedByStep tells whether the statement that has the step assigns to the same variable,
// which then has what the step returned.
func (c *checker) isAssignedByStep(x change, stack []ast.Node) bool {
	at := slices.Index(stack, x.step.node)
	for i := at - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.AssignStmt:
			return slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool {
				id, ok := e.(*ast.Ident)
				return ok && len(x.place) == 1 && c.variable(id) == x.place.variable()
			})
		case ast.Stmt:
			return false
		}
	}
	return false
}

// isTarget tells whether an expression is assigned to, and not read.
func isTarget(e ast.Expr, around []ast.Node) bool {
	for i := len(around) - 1; i >= 0; i-- { // a part of something that is assigned to
		p, ok := around[i].(ast.Expr)
		if !ok || rootOf(p) == nil || rootOf(p) != rootOf(e) {
			break
		}
		e, around = p, around[:i]
	}
	switch p := parent(around).(type) {
	case *ast.AssignStmt:
		return (p.Tok == token.ASSIGN || p.Tok == token.DEFINE) && slices.Contains(p.Lhs, e)
	case *ast.RangeStmt:
		return p.Key == e || p.Value == e
	case *ast.KeyValueExpr:
		return p.Key == e
	}
	return false
}

func rootOf(e ast.Expr) *ast.Ident {
	id, _ := root(e)
	return id
}

// isSel tells whether an expression is the name that is selected.
func isSel(p, e ast.Expr) bool {
	sel, ok := p.(*ast.SelectorExpr)
	return ok && sel.Sel == e
}

// isStruct tells whether a type is a struct, or points to one.
func isStruct(t types.Type) bool {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	_, ok := t.Underlying().(*types.Struct)
	return ok
}

// overlap tells whether one place is the other or a part of it, either way.
func overlap(a, b place) bool {
	n := min(len(a), len(b))
	return slices.Equal(a[:n], b[:n])
}

// holdsAgentContext tells whether a type is a struct with an agent's context in it, or points to
// one.
func holdsAgentContext(t types.Type) bool {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if isAgentContext(f.Type()) {
			return true
		}
	}
	return false
}
