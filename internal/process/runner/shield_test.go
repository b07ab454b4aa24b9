package runner

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// shieldedCommand is this program as a pool that has hidden its key, for a test.
const shieldedCommand = "shielded"

func shielded() {
	if err := HideKey(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("key", os.Getenv(keyVariable))
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test is over
}

// nobody is a user that may do nothing. As root the test's processes run as nobody, since root may read
// everything.
const nobody = 65534

// A command of the same user reads the key neither from the environment nor from the memory of the pool.
func TestOtherProcessesOfTheUserCannotReadTheKey(t *testing.T) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	as := func(cmd *exec.Cmd) *exec.Cmd {
		if cmd.Dir = "/"; os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		return cmd
	}
	const key = "pk_not_for_commands"
	pool := as(exec.Command("/proc/self/fd/3", shieldedCommand)) // its folder may be closed to that user
	pool.ExtraFiles = []*os.File{self}
	pool.Env = []string{keyVariable + "=" + key, "OTHER=kept"}
	in, err := pool.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := pool.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(); err != nil {
		t.Fatal(err)
	}
	defer pool.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "key "+key+"\n" {
		t.Fatalf("the pool has %q (error %v), want its key", line, err)
	}
	proc := "/proc/" + strconv.Itoa(pool.Process.Pid)
	for _, file := range []string{"environ", "mem"} {
		got, err := as(exec.Command("dd", "if="+proc+"/"+file, "bs=4096", "count=1")).CombinedOutput()
		if err == nil || !strings.Contains(string(got), "Permission denied") || strings.Contains(string(got), key) {
			t.Errorf("a process of the same user reads %s: %q (error %v), want it to be refused", file, got, err)
		}
	}
	if os.Getuid() == 0 { // root may read it, and finds no key
		if env, err := os.ReadFile(proc + "/environ"); err != nil || strings.Contains(string(env), key) ||
			!strings.Contains(string(env), "OTHER=kept") {
			t.Errorf("environ = %q (error %v), want it without the key", env, err)
		}
	}
	if args, err := os.ReadFile(proc + "/cmdline"); err != nil || strings.Contains(string(args), key) {
		t.Errorf("cmdline = %q (error %v), want it without the key", args, err)
	}
}
