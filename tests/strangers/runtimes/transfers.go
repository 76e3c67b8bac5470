// Goroutines transfer data through cgo, while others make the runtime use its handler of SIGSEGV, its signals of preemption and
// its garbage collector.
//
//	transfers DEVICE
package main

/*
#cgo LDFLAGS: -libverbs
#include "transfers.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	routines = 4
	count    = 500
)

func main() {
	device := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(device))
	var right, caught atomic.Int64
	var group sync.WaitGroup
	for i := 0; i < routines; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			right.Add(int64(C.right_transfers(device, count)))
		}()
	}
	ends := make(chan struct{})
	go func() {
		group.Wait()
		close(ends)
	}()
	for {
		select {
		case <-ends:
			if right.Load() == routines*count && caught.Load() > 0 {
				fmt.Println("all right")
			} else {
				fmt.Println(right.Load(), "right,", caught.Load(), "caught")
			}
			return
		default:
			for i := 0; i < 1000; i++ {
				caught.Add(follow(nil))
			}
			runtime.GC()
		}
	}
}

// The runtime turns the SIGSEGV into a panic.
func follow(pointer *int64) (caught int64) {
	defer func() {
		if recover() != nil {
			caught = 1
		}
	}()
	return *pointer
}
