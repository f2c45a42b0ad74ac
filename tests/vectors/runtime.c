/* A runtime in another language: plain attention in float, over the files of `python -m suite vectors`.

       cc -O2 -o runtime runtime.c -lm && mkdir ANSWERS && ./runtime VECTORS ANSWERS

   It answers float32 and bfloat16, without gradients. With -DWRONG it forgets the mask. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char type[8]; long shape[4], rank; const uint8_t *data; } Tensor;

static FILE *opened(const char *folder, const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, mode);
    if (!file) { perror(path); exit(2); }
    return file;
}

static uint8_t *content(const char *folder, const char *name) {
    FILE *file = opened(folder, name, "rb");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    uint8_t *bytes = calloc(size + 1, 1);
    rewind(file);
    if (fread(bytes, 1, size, file) != (size_t)size) { perror(name); exit(2); }
    fclose(file);
    return bytes;
}

/* What follows `"name":` in a JSON text, without blanks and an opening quote; "" where it is not there. */
static const char *field(const char *json, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *found = strstr(json, key);
    return found ? found + strlen(key) + strspn(found + strlen(key), " \"") : "";
}

static int begins(const char *text, const char *word) { return !strncmp(text, word, strlen(word)); }

/* A tensor of a safetensors file: the header's length in 8 bytes, the header, the data. */
static int tensor(const uint8_t *file, const char *name, Tensor *t) {
    const char *entry = field((const char *)file + 8, name), *text = field(entry, "shape");
    if (!*entry) return 0;
    sscanf(field(entry, "dtype"), "%7[A-Z0-9]", t->type);
    for (t->rank = 0, text++; *text != ']'; text += *text == ',')
        t->shape[t->rank++] = strtol(text, (char **)&text, 10);
    t->data = file + 8 + *(const uint64_t *)file + strtol(field(entry, "data_offsets") + 1, NULL, 10);
    return 1;
}

static float at(const Tensor *t, long i) {
    if (begins(t->type, "F32")) return ((const float *)t->data)[i];
    if (begins(t->type, "F64")) return ((const double *)t->data)[i];
    if (begins(t->type, "BOOL")) return t->data[i];
    uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16; /* BF16 */
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

/* The element (b, h, q, k) of a mask or bias, whose axes of size 1 stand for any size. */
static float spread(const Tensor *t, long b, long h, long q, long k) {
    long place = 0, index[4] = {b, h, q, k};
    for (int n = 0; n < 4; n++) place = place * t->shape[n] + (t->shape[n] == 1 ? 0 : index[n]);
    return at(t, place);
}

static void attend(const uint8_t *file, const Tensor *q, float *output, float *lse) {
    Tensor k, v, mask, bias, sinks, slopes, factors, number;
    tensor(file, "key", &k), tensor(file, "value", &v);
    int masked = tensor(file, "mask", &mask), biased = tensor(file, "bias", &bias);
    int sunk = tensor(file, "sinks", &sinks), sloped = tensor(file, "alibi_slopes", &slopes);
    int scaled = tensor(file, "logit_scale", &factors);
    float scale = tensor(file, "scale", &number) ? at(&number, 0) : 1;
    float cap = tensor(file, "softcap", &number) ? at(&number, 0) : 0;
    long H = q->shape[1], Lq = q->shape[2], D = q->shape[3], Hkv = k.shape[1], Lk = k.shape[2], Dv = v.shape[3];
    float *weights = malloc((Lk + 1) * sizeof *weights);
    for (long row = 0; row < q->shape[0] * H * Lq; row++) {
        long b = row / (H * Lq), h = row / Lq % H, i = row % Lq, first = (b * Hkv + h / (H / Hkv)) * Lk;
        float largest = sunk ? at(&sinks, h) : -INFINITY, sum = 0;
        for (long j = 0; j < Lk; j++) {
            float score = 0;
            for (long d = 0; d < D; d++) score += at(q, row * D + d) * at(&k, (first + j) * D + d);
            score *= scaled ? scale * at(&factors, h) : scale;
            if (cap != 0) score = cap * tanhf(score / cap);
            if (biased) score += spread(&bias, b, h, i, j);
            if (sloped) score -= at(&slopes, h) * labs(i + Lk - Lq - j);
#ifndef WRONG
            if (masked && !spread(&mask, b, h, i, j)) score = -INFINITY;
#endif
            weights[j] = score;
            if (!(score <= largest)) largest = score;
        }
        int empty = largest == -INFINITY; /* no key at all: zeros */
        for (long j = 0; j < Lk; j++) sum += weights[j] = empty ? 0 : expf(weights[j] - largest);
        if (sunk) sum += expf(at(&sinks, h) - largest);
        for (long d = 0; d < Dv; d++) {
            float out = 0;
            for (long j = 0; j < Lk; j++)
                if (weights[j] != 0) out += weights[j] * at(&v, (first + j) * Dv + d);
            output[row * Dv + d] = empty ? 0 : out / sum;
        }
        lse[row] = empty ? -INFINITY : largest + logf(sum);
    }
    free(weights);
}

/* A safetensors file with the output and, where `lse` is not NULL, the log-sum-exp. */
static void answer(FILE *file, const Tensor *q, long Dv, const float *output, const float *lse) {
    const long *s = q->shape, rows = s[0] * s[1] * s[2], end = 4 * rows * Dv;
    const char *form = "\"%s\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld,%ld%s],\"data_offsets\":[%ld,%ld]}%s";
    char header[512] = "{", last[32];
    snprintf(last, sizeof last, ",%ld", Dv);
    uint64_t size = 1 + sprintf(header + 1, form, "output", s[0], s[1], s[2], last, 0L, end, lse ? "," : "}");
    if (lse) size += sprintf(header + size, form, "lse", s[0], s[1], s[2], "", end, end + 4 * rows, "}");
    fwrite(&size, 8, 1, file), fwrite(header, 1, size, file), fwrite(output, 4, rows * Dv, file);
    if (lse) fwrite(lse, 4, rows, file);
    fclose(file);
}

int main(int count, char **words) {
    if (count != 3) { fprintf(stderr, "usage: %s VECTORS ANSWERS\n", words[0]); return 2; }
    const char *index = (const char *)content(words[1], "index.json");
    int answered = 0;
    for (const char *entry = index; (entry = strstr(entry, "\"case\":")); entry++) {
        char name[256];
        Tensor q, v;
        sscanf(field(entry, "file"), "%255[^\"]", name);
        if (!begins(field(entry, "operator"), "sdpa\"")) continue;
        if (!begins(field(entry, "dtype"), "F32") && !begins(field(entry, "dtype"), "BF16")) continue;
        uint8_t *file = content(words[1], name);
        tensor(file, "query", &q), tensor(file, "value", &v);
        long rows = q.shape[0] * q.shape[1] * q.shape[2];
        float *output = malloc(4 * rows * v.shape[3] + 1), *lse = malloc(4 * rows + 1);
        attend(file, &q, output, lse);
        int asked = begins(field(entry, "lse"), "true");
        answer(opened(words[2], name, "wb"), &q, v.shape[3], output, asked ? lse : NULL);
        free(output), free(lse), free(file), answered++;
    }
    FILE *file = opened(words[2], "runtime.json", "w");
    fprintf(file, "{\"name\": \"plain-c\", \"version\": \"1.0\", \"numerics\": \"exact\", \"vectors\": \"%.64s\",\n"
            " \"elections\": {\"fully-masked-row\": \"zeros\", \"minus-inf-row\": \"zeros\"}}\n", field(index, "digest"));
    fclose(file);
    printf("%d cases answered\n", answered);
    return 0;
}
