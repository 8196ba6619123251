# fuzz.mk - the fuzz targets under clang's libFuzzer, ASan and UBSan; scripts/fuzz
# runs it in a build folder, with TOP.  "make check" builds them by Makefile.am.
CC = clang
sanitizers = address,undefined
cflags = -std=c11 -D_GNU_SOURCE -g -O1 -fno-omit-frame-pointer \
	-I$(TOP) -I$(TOP)/include -MMD -MP \
	-fsanitize=fuzzer-no-link,$(sanitizers) \
	-fno-sanitize-recover=undefined -Wno-unknown-pragmas
ldflags = -fsanitize=fuzzer,$(sanitizers) -Wl,--wrap=malloc,--wrap=calloc \
	-Wl,--wrap=realloc,--wrap=reallocarray,--wrap=mmap,--wrap=munmap \
	-Wl,--wrap=madvise,--wrap=write
libs = -ljansson -lyaml -lm

# Of the archive each target links what it needs.  src/run.c wants OpenMP and
# OpenBLAS, src/comm_mpi.c MPI, and no target wants them.
sources = $(filter-out src/main.c src/run.c src/comm_mpi.c, \
	$(patsubst $(TOP)/%,%,$(wildcard \
	$(TOP)/chunker/*.c $(TOP)/pipeline/*.c $(TOP)/src/*.c)))
shared = tests/fuzz/fuzz.c tests/fuzz/dataset_laws.c tests/fuzz/plan_input.c \
	tests/lib/schedule_oracle.c
targets = $(patsubst $(TOP)/tests/fuzz/%.c,%,$(wildcard $(TOP)/tests/fuzz/fuzz_*.c))

all: $(targets)

fuzzed.a: $(patsubst %.c,obj/%.o,$(sources) $(shared))
	rm -f $@
	ar rcs $@ $^

$(targets): %: obj/tests/fuzz/%.o obj/tests/fuzz/fuzz.o fuzzed.a
	$(CC) $(ldflags) -o $@ $^ $(libs)

obj/%.o: $(TOP)/%.c $(TOP)/tests/fuzz/fuzz.mk
	@mkdir -p $(@D)
	$(CC) $(cflags) -c -o $@ $<

.SECONDARY:
.PHONY: all
-include $(shell find . -name '*.d')
