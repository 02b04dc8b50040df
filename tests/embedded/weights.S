// The checkpoint as a linked object: read-only, in flash, at a multiple of 64. Build with -DWEIGHTS='"model.bin"'. Without an
// assembler of this kind: objcopy -I binary -O elf32-littlearm --rename-section .data=.weights,alloc,load,readonly,data,contents
// --set-section-alignment .data=64 --redefine-sym _binary_model_bin_start=weights model.bin weights.o
        .section .weights, "a", %progbits
        .balign 64
        .global weights
        .type weights, %object
weights:
        .incbin WEIGHTS
        .size weights, . - weights
#if defined(__linux__)
        .section .note.GNU-stack, "", %progbits
#endif
