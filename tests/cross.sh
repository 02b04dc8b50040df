#!/bin/bash
# The same bits everywhere: builds checksum.cpp (small random models of all formats and architectures) and embedded/story.cpp (the
# model that ships, as a firmware has it) for every target whose compiler and emulator are installed, and compares the checksums
# of all logits, the ids and the text with those of this machine's Scalar room.
#
#     tests/cross.sh               all targets; ends with "N passed, N failed, N skipped", exit status 1 if one failed
#     tests/cross.sh cortex_m4     only these
#
# A new target is one function below and its name in `targets`.
cd "$(dirname "$0")/.." || exit 1
out=${BUILD:-build}/cross
model=${MODEL:-weights/stories.bin}
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wundef -Werror"
targets="desktop_O0 desktop_O2_native desktop_O3 clang_O3 clang_native one_room avx_vnni armv7 armv7_neon aarch64 aarch64_dot
         aarch64_clang riscv64 s390x i686 cortex_m0 cortex_m3 cortex_m4 cortex_m4_scalar cortex_m7 cortex_m33 cortex_m55 rv32imac rv32imafc wasm"

# ---- Targets -------------------------------------------------------------------------------------------------------------

desktop_O0() { hosted g++ g++ "-O0"; }
desktop_O2_native() { hosted g++ g++ "-O2 -march=native"; }
desktop_O3() { hosted g++ g++ "-O3"; }
clang_O3() { hosted clang++ clang "-O3"; }
clang_native() { hosted clang++ clang "-O2 -march=native"; }
one_room() { hosted g++ g++ "-O2 -DTRANSFORMER_ISA=Scalar"; }
armv7() { hosted arm-linux-gnueabihf-g++ g++-arm-linux-gnueabihf "-O2 -static" qemu-arm qemu-user; }
armv7_neon() { hosted arm-linux-gnueabihf-g++ g++-arm-linux-gnueabihf "-O3 -mfpu=neon -static" qemu-arm qemu-user; }
aarch64() { hosted aarch64-linux-gnu-g++ g++-aarch64-linux-gnu "-O2 -static" "qemu-aarch64 -cpu cortex-a53" qemu-user "neon scalar"; }
aarch64_dot() { hosted aarch64-linux-gnu-g++ g++-aarch64-linux-gnu "-O3 -static" "qemu-aarch64 -cpu cortex-a76" qemu-user "neon neon_dot scalar"; }
aarch64_clang() { hosted "clang++ --target=aarch64-linux-gnu" "clang, g++-aarch64-linux-gnu" "-O2 -static" qemu-aarch64 qemu-user "neon neon_dot scalar"; }
riscv64() { hosted riscv64-linux-gnu-g++ g++-riscv64-linux-gnu "-O2 -static" qemu-riscv64 qemu-user; }
s390x() { hosted s390x-linux-gnu-g++ g++-s390x-linux-gnu "-O2 -static" qemu-s390x qemu-user; }      # big-endian
i686() { hosted i686-linux-gnu-g++ g++-i686-linux-gnu "-O2 -msse2 -mfpmath=sse -static" qemu-i386 qemu-user; }

avx_vnni() # forced; where only AVX-512 has the instruction, an assembler in front of the assembler takes that encoding of it
{
    local flags="-O2 -mavxvnni -mavx2 -mfma -mf16c -DTRANSFORMER_ISA=AvxVnni"
    if ! grep -q avx_vnni /proc/cpuinfo; then
        grep -q avx512_vnni /proc/cpuinfo || { skip avx_vnni "this processor has no VPDPBUSD"; return; }
        mkdir -p "$out/evex"
        printf '#!/bin/bash\nsed "s/{vex} *vpdpbusd/vpdpbusd/" "${@: -1}" | as "${@:1:$#-1}"\n' > "$out/evex/as"
        chmod +x "$out/evex/as"
        flags="$flags -B$out/evex/"
    fi
    hosted g++ g++ "$flags" "" "" avx_vnni
}

# ARMv6-M code on the board of an M3 that traps unaligned accesses; no FPU. The others as their boards are.
cortex_m0() { cortex mps2-an385 "-Os -mcpu=cortex-m0"; }
cortex_m3() { cortex mps2-an385 "-Os -mcpu=cortex-m3 -mno-unaligned-access"; }
cortex_m4() { cortex mps2-an386 "-Os -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"; }
cortex_m4_scalar() { cortex mps2-an386 "-O3 -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16 -DTRANSFORMER_ISA=Scalar"; }
cortex_m7() { cortex mps2-an500 "-O2 -mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16"; }
cortex_m33() { cortex mps2-an505 "-O2 -mcpu=cortex-m33 -mfloat-abi=hard -mfpu=fpv5-sp-d16" "-Wl,--defsym=FLASH=0x10000000,--defsym=RAM=0x38000000"; }
cortex_m55() { cortex mps3-an547 "-O3 -mcpu=cortex-m55 -mfloat-abi=hard" "-Wl,--defsym=FLASH_SIZE=512K,--defsym=RAM_SIZE=512K"; }
rv32imac() { riscv rv32 "-Os -march=rv32imac -mabi=ilp32"; }          # no FPU, as ESP32-C3
rv32imafc() { riscv rv32 "-O2 -march=rv32imafc -mabi=ilp32f"; }

wasm() # in node's WASI; the models in memory only, since an assembler that takes weights.S is not there
{
    needs wasm clang++ clang && needs wasm wasm-ld "lld, wasi-libc, libc++-14-dev-wasm32, libclang-rt-14-dev-wasm32" && needs wasm node nodejs || return
    clang++ --target=wasm32-wasi -std=c++17 -O2 -fno-exceptions $warnings -I. tests/checksum.cpp -o "$out/wasm.wasm" 2> "$out/wasm.log" || { build_failed wasm; return; }
    cat > "$out/wasi.js" <<'EOF'
const wasi = new (require('wasi').WASI)({ version: 'preview1', args: ['checksum'] });
WebAssembly.instantiate(require('fs').readFileSync(process.argv[2]), { wasi_snapshot_preview1: wasi.wasiImport }).then(r => process.exit(wasi.start(r.instance)));
EOF
    node --no-warnings "$out/wasi.js" "$out/wasm.wasm" > "$out/wasm.checksum" 2>&1 < /dev/null
    verdict wasm
}

# ---- What they share -----------------------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0

skip() # NAME REASON
{
    printf 'SKIP  %-18s %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}
needs() # NAME "PROGRAM ..." PACKAGE: false, with a line, if it is not installed
{
    [ -z "$2" ] || command -v "${2%% *}" > /dev/null && return 0
    skip "$1" "${2%% *} is not installed (package $3)"
    return 1
}

# Holds $out/NAME.checksum and, if the target has it, $out/NAME.story against the reference, and the rooms against ROOMS.
verdict() # NAME ["ROOMS"]
{
    local rooms room bad="" story=", story"
    rooms=$(cut -d' ' -f1 "$out/$1.checksum" | sort -u | tr '\n' ' ')
    for room in $rooms; do
        sed -n "s/^$room //p" "$out/$1.checksum" | cmp -s - "$out/reference.checksum" || bad="$bad $room"
    done
    if [ ! -e "$out/$1.story" ]; then story=""
    else sed 's/ stack .*//' "$out/$1.story" | cmp -s - "$out/reference.story" || bad="$bad story"; fi
    [ -z "$2" ] || [ "$rooms" = "$2 " ] || bad="$bad rooms"
    if [ -z "$bad" ] && [ -n "$rooms" ]; then
        printf 'PASS  %-18s %s(%s models)%s\n' "$1" "$rooms" "$(grep -c . "$out/reference.checksum")" "$story"
        passed=$((passed + 1))
    else
        printf 'FAIL  %-18s differs:%s (see %s)\n' "$1" "${bad:- no output}" "$out/$1.*"
        failed=$((failed + 1))
    fi
}

build_failed()
{
    printf 'FAIL  %-18s does not build: %s\n' "$1" "$(grep -m1 -E 'error|warning' "$out/$1.log")"
    failed=$((failed + 1))
}

hosted() # COMPILER PACKAGE "FLAGS" [EMULATOR PACKAGE] ["ROOMS"]; the target's name is that of the function that calls
{
    local name=${FUNCNAME[1]} compiler=$1 flags=$3 emulator=$4
    needs "$name" "$compiler" "$2" && needs "$name" "$emulator" "$5" || return
    $compiler -std=c++17 $flags $warnings -I. tests/checksum.cpp -o "$out/$name.1" 2> "$out/$name.log" &&
        $compiler -std=c++17 $flags $warnings -I. -I"$out" -DWEIGHTS="\"$out/model.bin\"" tests/embedded/story.cpp tests/embedded/weights.S \
            -o "$out/$name.2" 2> "$out/$name.log" || { build_failed "$name"; return; }
    timeout 600 $emulator "$out/$name.1" > "$out/$name.checksum" 2>&1 < /dev/null
    timeout 600 $emulator "$out/$name.2" > "$out/$name.story" 2>&1 < /dev/null
    verdict "$name" "$6"
}

# Links and runs the programs $out/NAME.1.o and .2.o with COMPILE's tool chain.
bare_run() # NAME COMPILE "EMULATOR ..." "ADDRESSES"
{
    local name=$1 compile=$2 emulator=$3 addresses=$4 here=tests/embedded frames="" i
    case $compile in *" -Os"*) frames=-Wstack-usage=512 ;; esac                # no frame above 512 bytes on a chip
    (
        $compile $warnings $frames -c tests/checksum.cpp -o "$out/$name.1.o" && $compile $warnings $frames -c $here/story.cpp -o "$out/$name.2.o" &&
            $compile -fno-tree-loop-distribute-patterns -c $here/startup.cpp -o "$out/$name.startup.o" &&
            $compile -DWEIGHTS="\"$out/model.bin\"" -c $here/weights.S -o "$out/$name.weights.o" &&
            for i in 1 2; do
                $compile -nostdlib -Wl,--gc-sections $addresses -T $here/chip.ld "$out/$name".{startup,$i,weights}.o -lgcc -o "$out/$name.$i" || exit 1
            done
    ) 2> "$out/$name.log" || { build_failed "$name"; return; }
    timeout 600 $emulator -kernel "$out/$name.1" > "$out/$name.checksum" 2>&1 < /dev/null
    timeout 600 $emulator -kernel "$out/$name.2" > "$out/$name.story" 2>&1 < /dev/null
    verdict "$name"
}

lean="-ffreestanding -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffunction-sections -fdata-sections -DTRANSFORMER_NO_STDIO -I. -I$out"
console="-nographic -monitor none -serial none -semihosting-config enable=on,target=native"

cortex() # MACHINE "FLAGS" ["ADDRESSES"]
{
    local name=${FUNCNAME[1]}
    needs "$name" arm-none-eabi-g++ "gcc-arm-none-eabi, libstdc++-arm-none-eabi-newlib" && needs "$name" qemu-system-arm qemu-system-arm || return
    bare_run "$name" "arm-none-eabi-g++ -std=c++17 $2 -mthumb $lean" "qemu-system-arm -M $1 $console" "$3"
}

riscv() # CPU "FLAGS"
{
    local name=${FUNCNAME[1]}
    local headers=/usr/lib/picolibc/riscv64-unknown-elf/include                # <string.h>; nothing of the library is linked
    needs "$name" riscv64-unknown-elf-g++ "gcc-riscv64-unknown-elf, picolibc-riscv64-unknown-elf" && needs "$name" qemu-system-riscv32 qemu-system-misc || return
    bare_run "$name" "riscv64-unknown-elf-g++ -std=c++17 $2 -mcmodel=medany -msmall-data-limit=0 -isystem $headers $lean" \
        "qemu-system-riscv32 -M virt -cpu $1 -m 16M -bios none $console" "-Wl,--defsym=FLASH=0x80000000,--defsym=RAM=0x80400000"
}

# ---- The reference: g++ -O2 on this machine, the Scalar room alone ---------------------------------------------------------

mkdir -p "$out"
rm -f "$out"/*.checksum "$out"/*.story
[ -n "$RUN" ] || ${MAKE:-make} --no-print-directory run > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
${RUN:-./run} import "$model" "$out/model.bin" --ctx-size 256 --header "$out/model.hpp" > "$out/run.log" 2>&1 || { cat "$out/run.log"; exit 1; }
g++ -std=c++17 -O2 -DTRANSFORMER_ISA=Scalar -I. tests/checksum.cpp -o "$out/reference.1" || exit 1
g++ -std=c++17 -O2 -DTRANSFORMER_ISA=Scalar -I. -I"$out" -DWEIGHTS="\"$out/model.bin\"" tests/embedded/story.cpp tests/embedded/weights.S -o "$out/reference.2" || exit 1
"$out/reference.1" > "$out/reference.all" || { cat "$out/reference.all"; exit 1; }
sed 's/^scalar //' "$out/reference.all" > "$out/reference.checksum"
"$out/reference.2" | sed 's/ stack .*//' > "$out/reference.story"
echo "story: $(tail -1 "$out/reference.story"), all models: $(cksum < "$out/reference.checksum" | cut -d' ' -f1)"

for target in ${*:-$targets}; do $target; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
