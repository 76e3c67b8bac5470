// The program of T fig. 6.1: it only begins and ends, with 10 MB of global memory.

#include "argo.hpp"

int main() {
    argo::init(10 * 1000 * 1000UL);
    argo::finalize();
}
