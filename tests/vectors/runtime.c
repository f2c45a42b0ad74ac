/* A runtime in another language: plain attention in float, over the files of `python -m suite vectors`.

       cc -O2 -o runtime runtime.c -lm && ./runtime VECTORS ANSWERS

   It answers float32 and bfloat16, without gradients. -DWRONG makes it one that forgets the mask. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char type[8]; long shape[4], rank, size; const uint8_t *data; } Tensor;

static uint8_t *slurp(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) { perror(path); exit(2); }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = calloc(size + 1, 1);
    if (fread(bytes, 1, size, file) != (size_t)size) { perror(path); exit(2); }
    fclose(file);
    return bytes;
}

/* What follows `"name":` in a JSON text, without blanks and an opening quote; NULL where it is not there. */
static const char *field(const char *json, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *found = strstr(json, key);
    if (!found) return NULL;
    for (found += strlen(key); *found == ' ' || *found == '"'; found++) {}
    return found;
}

static int is(const char *text, const char *word) { return text && !strncmp(text, word, strlen(word)); }

/* A tensor of a safetensors file: 8 bytes length of the header, the header, the data. */
static int tensor(const uint8_t *file, const char *name, Tensor *t) {
    const char *entry = field((const char *)file + 8, name), *text;
    if (!entry) return 0;
    sscanf(field(entry, "dtype"), "%7[A-Z0-9]", t->type);
    t->rank = 0, t->size = 1;
    for (text = field(entry, "shape") + 1; *text != ']'; text += *text == ',')
        t->size *= t->shape[t->rank++] = strtol(text, (char **)&text, 10);
    t->data = file + 8 + *(const uint64_t *)file + strtol(field(entry, "data_offsets") + 1, NULL, 10);
    return 1;
}

static double at(const Tensor *t, long i) {
    uint32_t bits = (uint32_t)((const uint16_t *)t->data)[is(t->type, "BF16") ? i : 0] << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    if (is(t->type, "BF16")) return wide;
    if (is(t->type, "F32")) return ((const float *)t->data)[i];
    return is(t->type, "F64") ? ((const double *)t->data)[i] : t->data[i];
}

/* The element (b, h, q, k) of a tensor whose axes of size 1 stand for any size. */
static double spread(const Tensor *t, long b, long h, long q, long k) {
    long place = 0, index[4] = {b, h, q, k};
    for (int n = 0; n < 4; n++) place = place * t->shape[n] + (t->shape[n] == 1 ? 0 : index[n]);
    return at(t, place);
}

static void attend(const uint8_t *file, const Tensor *q, float *output, float *lse) {
    Tensor k, v, mask, bias, sinks, number;
    tensor(file, "key", &k), tensor(file, "value", &v);
    int masked = tensor(file, "mask", &mask), biased = tensor(file, "bias", &bias);
    int sunk = tensor(file, "sinks", &sinks);
    float scale = tensor(file, "scale", &number) ? at(&number, 0) : 1;
    float cap = tensor(file, "softcap", &number) ? at(&number, 0) : 0;
    long H = q->shape[1], Lq = q->shape[2], D = q->shape[3], Hkv = k.shape[1], Lk = k.shape[2], Dv = v.shape[3];
    float *weights = malloc((Lk + 1) * sizeof *weights);
    for (long row = 0; row < q->shape[0] * H * Lq; row++) {
        long b = row / (H * Lq), h = row / Lq % H, i = row % Lq, group = (b * Hkv + h / (H / Hkv)) * Lk;
        float largest = sunk ? at(&sinks, h) : -INFINITY, sum = 0;
        for (long j = 0; j < Lk; j++) {
            float score = 0;
            for (long d = 0; d < D; d++) score += (float)at(q, row * D + d) * (float)at(&k, (group + j) * D + d);
            score *= scale;
            if (cap) score = cap * tanhf(score / cap);
            if (biased) score += spread(&bias, b, h, i, j);
#ifndef WRONG
            if (masked && !spread(&mask, b, h, i, j)) score = -INFINITY;
#endif
            weights[j] = score;
            if (!(score <= largest)) largest = score;
        }
        int empty = largest == -INFINITY; /* a row without keys: zeros */
        for (long j = 0; j < Lk; j++) sum += weights[j] = empty ? 0 : expf(weights[j] - largest);
        if (sunk) sum += expf(at(&sinks, h) - largest);
        for (long d = 0; d < Dv; d++) {
            float out = 0;
            for (long j = 0; j < Lk; j++) if (weights[j] != 0) out += weights[j] * (float)at(&v, (group + j) * Dv + d);
            output[row * Dv + d] = empty ? 0 : out / sum;
        }
        lse[row] = empty ? -INFINITY : largest + logf(sum);
    }
    free(weights);
}

static void write_answer(const char *folder, const char *name, const Tensor *q, long Dv, const float *output, const float *lse) {
    char path[4096], header[512] = "", shape[128];
    uint64_t rows = q->shape[0] * q->shape[1] * q->shape[2], end = rows * Dv * 4;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(shape, sizeof shape, "%ld,%ld,%ld", q->shape[0], q->shape[1], q->shape[2]);
    int n = sprintf(header, "{\"output\":{\"dtype\":\"F32\",\"shape\":[%s,%ld],\"data_offsets\":[0,%lu]}", shape, Dv, end);
    if (lse) n += sprintf(header + n, ",\"lse\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%lu,%lu]}", shape, end, end + rows * 4);
    uint64_t length = n + 1;
    header[n] = '}';
    FILE *file = fopen(path, "wb");
    if (!file) { perror(path); exit(2); }
    fwrite(&length, 8, 1, file), fwrite(header, 1, length, file), fwrite(output, 4, rows * Dv, file);
    if (lse) fwrite(lse, 4, rows, file);
    fclose(file);
}

int main(int count, char **words) {
    if (count != 3) { fprintf(stderr, "usage: %s VECTORS ANSWERS\n", words[0]); return 2; }
    const char *index = (const char *)slurp(words[1], "index.json");
    int answered = 0;
    for (const char *entry = index; (entry = strstr(entry, "\"case\":")); entry++) {
        char name[512], path[4096];
        Tensor q, v;
        sscanf(field(entry, "file"), "%511[^\"]", name);
        if (!is(field(entry, "operator"), "sdpa\"") || is(field(entry, "flag"), "causal")) continue;
        if (!is(field(entry, "dtype"), "F32") && !is(field(entry, "dtype"), "BF16")) continue;
        uint8_t *file = slurp(words[1], name);
        if (is(field(entry, "kind"), "case") || !tensor(file, "cotangent", &q)) {
            tensor(file, "query", &q), tensor(file, "value", &v);
            long rows = q.shape[0] * q.shape[1] * q.shape[2];
            float *output = malloc(rows * v.shape[3] * 4 + 1), *lse = malloc(rows * 4 + 1);
            attend(file, &q, output, lse);
            write_answer(words[2], name, &q, v.shape[3], output, is(field(entry, "lse"), "true") ? lse : NULL);
            free(output), free(lse), answered++;
        }
        free(file);
        (void)path;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/runtime.json", words[2]);
    FILE *file = fopen(path, "w");
    if (!file) { perror(path); return 2; }
    fprintf(file, "{\"name\": \"plain-c\", \"version\": \"1\", \"numerics\": \"exact\", \"vectors\": \"%.64s\"}\n", field(index, "digest"));
    fclose(file);
    printf("%d cases answered\n", answered);
    return 0;
}
