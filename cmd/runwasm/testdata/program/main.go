// Command program ends as its argument says.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Println("arguments:", os.Args[1:])
	switch os.Args[1] {
	case "fail":
		os.Exit(3)
	case "panic":
		panic("as asked")
	}
}
