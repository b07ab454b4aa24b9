package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"
)

// Profile starts the profiles with a file name, and returns a function that ends them.
func Profile(cpu, mem string) (stop func() error, err error) {
	var out *os.File
	if cpu != "" {
		if out, err = os.Create(cpu); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return nil, errors.Join(err, out.Close())
		}
	}
	return func() (err error) {
		if out != nil {
			pprof.StopCPUProfile()
			err = out.Close()
		}
		if mem == "" {
			return err
		}
		f, ferr := os.Create(mem)
		if ferr != nil {
			return errors.Join(err, ferr)
		}
		runtime.GC()
		return errors.Join(err, pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
	}, nil
}

// profilesOf returns the prefix of a server's profiles. A scenario may have several servers.
func profilesOf(prefix string, pid int) string { return fmt.Sprintf("%s.%d.", prefix, pid) }

const profileLast = "goroutine"

// snapshot makes a server write its memory profiles, if profiles are wanted.
func (p *place) snapshot(ctx context.Context, t *httpTarget) error {
	if p.profiles == "" {
		return nil
	}
	pid := t.server.Cmd.Process.Pid
	t.server.Cmd.Process.Signal(syscall.SIGUSR1)
	return await(ctx, "the server has written its profile", time.Minute, func() (bool, error) {
		info, err := os.Stat(profilesOf(p.profiles, pid) + profileLast)
		return err == nil && info.Size() > 0, nil
	})
}

// writeMemory writes the memory profiles of this process. The text form of the heap profile also
// has the size of the stacks.
func writeMemory(prefix string) error {
	runtime.GC() // the heap profile is as of the last collection
	for _, x := range []struct {
		file, profile string
		text          int
	}{{"heap", "heap", 0}, {"heap.txt", "heap", 1}, {profileLast, "goroutine", 0}} {
		f, err := os.Create(prefix + x.file)
		if err != nil {
			return err
		}
		if err := errors.Join(pprof.Lookup(x.profile).WriteTo(f, x.text), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
