package agentvet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// Effect finds effects outside of steps: requests, changes of files, commands, statements for a database.
var Effect = rule("agenteffect", "report a request, a changed file, a command or a database outside of steps\n\n"+
	"An agent is executed anew after every wait and every crash, and each execution has the effect again.\n"+
	"In a step it happens once, and its result is recorded.", checkEffect)

// effects are the functions that have an effect outside, by package and type. Functions of no type have an
// empty one.
var effects = map[string]map[string][]string{
	"net/http": {
		"":       {"Get", "Head", "Post", "PostForm"},
		"Client": {"Do", "Get", "Head", "Post", "PostForm"},
	},
	"net/smtp": {"": {"SendMail"}},
	"os": {"": {"Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "Link", "Mkdir", "MkdirAll", "MkdirTemp",
		"Remove", "RemoveAll", "Rename", "StartProcess", "Symlink", "Truncate", "WriteFile"}},
	"os/exec": {"Cmd": {"CombinedOutput", "Output", "Run", "Start"}},
	"database/sql": {
		"DB":   {"Begin", "BeginTx", "Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext"},
		"Conn": {"BeginTx", "ExecContext", "QueryContext", "QueryRowContext"},
		"Tx":   {"Commit", "Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext", "Rollback"},
		"Stmt": {"Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext"},
	},
}

func checkEffect(c *checker) {
	c.walk(func(n ast.Node, stack []ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || c.in(stack).kind() != agentCode {
			return
		}
		f, ok := typeutil.Callee(c.info, call).(*types.Func)
		if !ok || f.Pkg() == nil {
			return
		}
		of := receiverOf(f)
		if !slices.Contains(effects[f.Pkg().Path()][of], f.Name()) {
			return
		}
		name := f.Pkg().Name() + "." + f.Name()
		if of != "" {
			name = f.Pkg().Name() + "." + of + "." + f.Name()
		}
		c.report(call, "%s outside of steps: every execution of the agent does it again; do it in a step", name)
	})
}

// receiverOf returns the name of the type whose method a function is, or nothing.
func receiverOf(f *types.Func) string {
	recv := f.Signature().Recv()
	if recv == nil {
		return ""
	}
	t := recv.Type()
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Obj().Name()
	}
	return "?" // of an interface
}
